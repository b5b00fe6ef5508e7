package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"culvert/gateway/node"
	"culvert/gateway/node/services"
)

// printNode prints what --check says about a file without faults.
func printNode(w io.Writer, file string, c *node.Config) error {
	warnings := slices.Clone(c.Warnings)
	if c.Tunnel {
		present, lacking, err := c.CheckRoutes()
		if err != nil {
			return err
		}
		kernel := ""
		if present >= 0 {
			kernel = fmt.Sprintf(", %d in the kernel", present)
		}
		warnings = append(warnings, lacking...)
		fmt.Fprintf(w, "%s: good: %s to the gateway at %s, VNI %d, %d routes%s\n", file, c.Name, c.Gateway, c.VNI,
			len(c.Routes), kernel)
	}
	if c.Services != nil {
		what := "Services"
		if n := len(c.Services.Services); n > 0 {
			what = servedPorts(n)
		}
		fmt.Fprintf(w, "%s: good: %s serves %s\n", file, c.Name, what)
		warnings = append(warnings, checkServices(c.Services)...)
	}
	for _, warning := range warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	return nil
}

// checkServices returns the reasons why this machine could not serve c now, one line each.
func checkServices(c *services.Config) []string {
	var err error
	if c.Mode == services.Sockets {
		err = errors.Join(checkSockets(c)...)
	} else {
		err = c.Check()
	}
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// servedPorts is a number of ports in words.
func servedPorts(n int) string {
	if n == 1 {
		return "1 port of a Service"
	}
	return strconv.Itoa(n) + " ports of Services"
}
