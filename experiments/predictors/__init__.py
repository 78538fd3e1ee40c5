"""The errors of each predictor of output lengths: `servelab predictors`."""
