package config

import "culvert/gateway/configfile"

// parseText reads a file without a name: errors have no line numbers.
func parseText(text []byte, dir string) (*Config, error) {
	return parse(&configfile.Errors{Fields: fields}, text, dir)
}
