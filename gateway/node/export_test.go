package node

import "culvert/gateway/configfile"

// parseConfig reads a file without a name: errors have no line numbers.
func parseConfig(text []byte) (*Config, error) {
	return parse(&configfile.Errors{Fields: fields}, text, "")
}
