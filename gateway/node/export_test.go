package node

import "culvert/gateway/configfile"

// parseConfig reads a file that has no name: its errors say no lines.
func parseConfig(text []byte) (*Config, error) {
	return parse(&configfile.Errors{Fields: fields}, text, "")
}
