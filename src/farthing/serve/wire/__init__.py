"""What goes over the wire: the JSON of requests and responses as typed structures."""
