"""All sections as one report: measured, resumed, kept as JSON, compared, drawn as a page."""
