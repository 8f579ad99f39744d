"""The gateway: one multi-tenant HTTP service over shared base models, policies and jobs."""
