"""The engine behind a port: OpenAI's API, admission and limits, and the web page."""
