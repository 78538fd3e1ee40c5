"""How long a step takes: tables (`step`) and the sources that fill them."""
