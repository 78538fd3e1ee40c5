"""The division of an instance in a step: data-parallel ranks, pipeline stages, streams on shares of the SMs."""
