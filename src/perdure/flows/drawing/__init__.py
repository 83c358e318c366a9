"""Flows as pictures: the chart of a body, its layout, and how it is put on a terminal or into an SVG."""
