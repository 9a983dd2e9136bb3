"""The topology of docker-compose.yml as processes of this machine, started from that very file."""
