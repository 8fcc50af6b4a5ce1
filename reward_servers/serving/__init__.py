"""Ray Serve deployments of rewards and metrics, and the clients that call them."""
