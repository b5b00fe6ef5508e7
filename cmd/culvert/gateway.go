package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/gateway"
)

func newGatewayCommand() *cobra.Command {
	var file, output string
	var check bool
	cmd := &cobra.Command{
		Use:   "gateway --config FILE",
		Short: "Run the gateway of one cluster towards one remote cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := gateway.LoadConfig(file)
			if err != nil {
				return err
			}
			if check {
				if err := gateway.Check(c); err != nil {
					return err
				}
				return printChecked(cmd.OutOrStdout(), file, output, c)
			}
			return runGateway(cmd.Context(), file, c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&check, "check", false, "validate the configuration and exit")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "with --check: text or json")
	cmd.MarkFlagRequired("config")
	return cmd
}

func runGateway(ctx context.Context, file string, c *gateway.Config) error {
	chooseProcs()
	log, err := newLogger(c.Log.Level, c.Log.Format)
	if err != nil {
		return err
	}
	budget := gateway.ReadBudget()
	if budget.Heap > 0 {
		debug.SetMemoryLimit(budget.Heap)
	}
	g, err := gateway.New(c, budget, log)
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				reload(g, file, log)
			}
		}
	}()
	if err := g.Run(ctx); err != nil {
		return failure{err}
	}
	return nil
}

// reload applies file; a file that is bad in any way changes nothing.
func reload(g *gateway.Gateway, file string, log *logrus.Logger) {
	c, err := gateway.LoadConfig(file)
	if err == nil {
		err = g.Apply(c)
	}
	if err != nil {
		log.WithError(err).Error("configuration refused, the running one stays")
	}
}

// checked is the compiled view of a configuration: what --check -o json prints.
type checked struct {
	Cluster       string        `json:"cluster"`
	Peer          string        `json:"peer"`
	MTU           int           `json:"mtu"`
	UnknownSource string        `json:"unknownSource"` // "off" or the address
	Remaps        []remap       `json:"remaps"`
	Nodes         []checkedNode `json:"nodes"`
}

type remap struct {
	CIDR  netip.Prefix `json:"cidr"`
	Remap netip.Prefix `json:"remap"`
}

type checkedNode struct {
	Name   string         `json:"name"`
	VNI    uint32         `json:"vni"`
	Routes []netip.Prefix `json:"routes"`
}

func printChecked(w io.Writer, file, output string, c *gateway.Config) error {
	switch output {
	case "text":
		_, err := fmt.Fprintf(w, "%s: good: %s to %s, %d nodes\n", file, c.Cluster, c.Peer, len(c.Geneve.Nodes))
		return err
	case "json":
	default:
		return errors.New("--output: want text or json")
	}
	view := checked{Cluster: c.Cluster, Peer: c.Peer, MTU: int(c.MTU), UnknownSource: "off"}
	if c.UnknownSource.IsValid() {
		view.UnknownSource = c.UnknownSource.String()
	}
	var routes []netip.Prefix
	for _, r := range c.Remote {
		view.Remaps = append(view.Remaps, remap{r.Real, r.Remapped})
		routes = append(routes, r.Remapped)
	}
	for _, n := range c.Geneve.Nodes {
		view.Nodes = append(view.Nodes, checkedNode{n.Name, uint32(n.VNI), routes})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(view)
}
