"""What experiments are made of: data sets, runs, figures, reports, places without a clock."""
