package config

import "culvert/gateway/configfile"

// parseText reads a file that has no name: its errors say no lines.
func parseText(text []byte, dir string) (*Config, error) {
	return parse(&configfile.Errors{Fields: fields}, text, dir)
}
