"""How right each predictor of output lengths is: `servelab predictors`."""
