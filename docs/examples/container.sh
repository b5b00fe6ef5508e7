#!/bin/sh
# rome's gateway in a container, from the folder with gateway.yaml and its keys; make image builds culvert:latest.
# It runs as you, because the key is yours alone. The host's network keeps the addresses that nodes send to.
exec docker run --rm --name culvert-rome --network host --user "$(id -u):$(id -g)" \
	--read-only --cap-drop ALL --security-opt no-new-privileges --memory 64m \
	--volume "$PWD:/etc/culvert:ro" \
	culvert:latest gateway --config /etc/culvert/gateway.yaml
