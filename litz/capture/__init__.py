"""Capture: from what Dynamo hands over to a functional ATen graph, and back to a callable."""
