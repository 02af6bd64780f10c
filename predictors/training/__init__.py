"""Fits predictors with scikit-learn; what comes out is plain lists."""
