package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
)

func newDoctorCommand() *cobra.Command {
	var file string
	c := newClientCommand(&cobra.Command{
		Use:   "doctor [--config FILE | --socket SOCKET]",
		Short: "Say what this machine gives a gateway, what that costs and what to do",
		Long: "Say what this machine gives a gateway: socket buffers, offloads, memory, free ports, a cipher that\n" +
			"is right and fast. What is poor costs something; with what is bad a gateway cannot work: exit\n" +
			"status 1. With --socket, a running gateway says what it has.",
		Example: "  culvert doctor\n  culvert doctor -o json\n  culvert doctor --config rome/gateway.yaml\n  culvert doctor --socket rome",
		Args:    cobra.NoArgs,
	}, "text", "json", "yaml")
	c.Flags().Lookup("socket").Usage = "ask the gateway of this control `SOCKET`, or of a name such as rome or rome-milan"
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` whose ports are to be free; without it, the usual ones")
	c.MarkFlagsMutuallyExclusive("config", "socket")
	c.RunE = func(*cobra.Command, []string) error {
		conditions, err := c.examine(file)
		if err != nil {
			return err
		}
		if c.output == "text" {
			err = printConditions(c.OutOrStdout(), conditions)
		} else {
			err = c.print(conditions)
		}
		if err != nil {
			return err
		}
		for _, x := range conditions {
			if x.State == "bad" {
				return failure{errors.New(x.Name + ": " + x.Found + "; " + x.Remedy)}
			}
		}
		return nil
	}
	return c.Command
}

// examine asks the gateway that is meant, or looks at this machine.
func (c *clientCommand) examine(file string) ([]control.Condition, error) {
	if c.Flags().Changed("socket") {
		g, err := c.gateway()
		if err != nil {
			return nil, err
		}
		return g.Doctor(c.Context())
	}
	var wanted *config.Config
	if file != "" {
		var err error
		if wanted, err = config.Load(file); err != nil {
			return nil, err
		}
	}
	chooseProcs() // as a gateway does
	return gateway.Examine(wanted), nil
}

func printConditions(w io.Writer, conditions []control.Condition) error {
	t := newTable(w)
	for _, x := range conditions {
		fmt.Fprintf(t, "%s\t%s\t%s\n", x.State, x.Name, x.Found)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range conditions {
		if x.State == "good" {
			continue
		}
		costs, remedy := wrap(fmt.Sprintf("%s is %s: %s", x.Name, x.State, x.Costs), statusWidth), wrap("do: "+x.Remedy, statusWidth-2)
		if _, err := fmt.Fprintf(w, "\n%s\n  %s\n", costs, strings.ReplaceAll(remedy, "\n", "\n  ")); err != nil {
			return err
		}
	}
	return nil
}
