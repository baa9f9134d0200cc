"""The report as a page for a browser."""
