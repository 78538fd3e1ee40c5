"""One run through one of the engines: from its setting to the arrays that it leaves."""
