"""Puts the roles of a recipe together and runs them."""
