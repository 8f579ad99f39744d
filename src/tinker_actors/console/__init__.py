"""How runs look in a terminal."""
