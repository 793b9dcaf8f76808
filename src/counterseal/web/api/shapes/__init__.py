"""What goes over the wire, in models: the same for the API's document, its routes, and the client.

Answers mirror the records of a `Desk` and of an `Observation`. They are exact in the document; a
client that is older than its server leaves out what it does not know.
"""
