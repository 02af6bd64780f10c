"""Run folders: the experiments that make them, figures from several of them, tables and pages."""
