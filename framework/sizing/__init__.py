"""Which split of instances a load asks for."""
