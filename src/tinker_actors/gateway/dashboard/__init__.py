"""The page that shows jobs, policies, the mesh and rollouts."""
