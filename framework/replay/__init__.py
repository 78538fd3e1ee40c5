"""One run through one of the engines: from the setting of a run to the arrays that it leaves behind."""
