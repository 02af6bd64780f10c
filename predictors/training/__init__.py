"""Training of predictors with scikit-learn; the results are plain lists."""
