"""Run folders: experiments that make them, what they say, their tables and pages."""
