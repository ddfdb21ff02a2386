"""A configuration's numbers, in closed form and without torch."""
