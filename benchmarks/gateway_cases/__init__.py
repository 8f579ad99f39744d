"""What is measured of the gateway, and the service that it is measured on."""
