"""Training and sampling at a service: what every kind of service does, and a remote one, through the official client.

`ServiceClient` stands on it, and so does a run whose policies are trained at a Tinker service. It knows nothing of what
serves here.
"""
