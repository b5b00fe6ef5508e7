package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"culvert/gateway/node"
	"culvert/gateway/node/services"
)

// printNode prints what --check says about a file without faults.
func printNode(w io.Writer, file string, c *node.Config) error {
	warnings := c.Warnings
	if c.Tunnel {
		present, lacking, err := c.CheckRoutes()
		if err != nil {
			return err
		}
		kernel := ""
		if present >= 0 {
			kernel = fmt.Sprintf(", %d in the kernel", present)
		}
		warnings = slices.Concat(warnings, lacking)
		fmt.Fprintf(w, "%s: good: %s to the gateway at %s, VNI %d, %s%s\n", file, c.Name, c.Gateway, c.VNI, counted(len(c.Routes), "route", "routes"), kernel)
	}
	if c.Services != nil && len(c.Services.Services) > 0 {
		fmt.Fprintf(w, "%s: good: %s serves %s\n", file, c.Name, counted(len(c.Services.Services), "port of a Service", "ports of Services"))
	} else if c.Services != nil {
		fmt.Fprintf(w, "%s: good: %s serves Services\n", file, c.Name)
	}
	if c.Services != nil {
		warnings = slices.Concat(warnings, checkServices(c.Services))
	}
	for _, warning := range warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	return nil
}

// checkServices returns what would prevent serving on this machine now, one line each.
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

// counted is a number with its noun.
func counted(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}
