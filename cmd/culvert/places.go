package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"

	"culvert/gateway/configfile"
	"culvert/gateway/control"
)

// places returns a function that finds the line of a field in the gateway's file, as file:line. It
// finds none if the file is not on this machine, or differs from what the gateway has read.
func (c *clientCommand) places(gateway *control.Client) func(field string) string {
	nowhere := func(string) string { return "" }
	s, err := gateway.Status(c.Context())
	if err != nil || s.ConfigFile == "" {
		return nowhere
	}
	text, err := configfile.Read(s.ConfigFile, configfile.MaxSize)
	if sum := sha256.Sum256(text); err != nil || hex.EncodeToString(sum[:]) != s.ConfigSum {
		return nowhere
	}
	line := configfile.Lines(text)
	name := filepath.Base(s.ConfigFile)
	return func(field string) string {
		if n := line(field); field != "" && n > 0 {
			return fmt.Sprintf("%s:%d", name, n)
		}
		return ""
	}
}

// originText returns the source of a rule or route: line and field of a file, or a resource.
func originText(origin, field, place string) string {
	switch {
	case place != "":
		return place + " " + field
	case field != "":
		return origin + " " + field
	}
	return origin
}
