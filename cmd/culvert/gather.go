package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/gateway/gather"
)

// gathering are the flags of culvert gather.
type gathering struct {
	*clientCommand
	kubeconfig, file string
	contexts, logs   []string
	anonymise        bool
}

func newGatherCommand() *cobra.Command {
	c := newClientCommand(&cobra.Command{
		Use:   "gather",
		Short: "Put all that helps to find a fault into one archive, without secrets",
		Long: "Put all that helps to find a fault into one archive, without secrets: what the gateways and nodes of " +
			"this machine say, or with --context what clusters say of their peerings. It has statuses, rules and " +
			"routes, numbers of connections, what doctor finds, and versions; of clusters also objects, Events and " +
			"logs. No Secret is read, and what looks like a private key, a token or a password is removed.\n\n" +
			"With --anonymise, pseudonyms stand for addresses and names, the same in the whole archive; an address " +
			"is in a CIDR if its pseudonym is in that of the CIDR. Words of log lines stay, except names that stand " +
			"in a field or an object anywhere: look through the archive before you publish it.\n\n" +
			"Exit status 1: the archive is written, and the lines on standard error say what it lacks, as " +
			"contents.json in it does. culvert status --from FILE shows the statuses in it.",
		Example: "  culvert gather\n  culvert gather --context rome --context milan --anonymise -w fault.tar.gz\n" +
			"  culvert status --from fault.tar.gz",
		Args: cobra.NoArgs,
	})
	g := &gathering{clientCommand: c}
	c.Flags().Lookup("socket").Usage = "control `SOCKET` of one gateway or node, or its name; without it, all that run"
	c.Flags().StringArrayVar(&g.contexts, "context", nil, "`NAME` of a context of kubeconfig; may be repeated")
	c.Flags().StringVar(&g.kubeconfig, "kubeconfig", "", "with --context: kubeconfig `FILE` (default: as for kubectl)")
	c.Flags().StringArrayVar(&g.logs, "log", nil, "add a `FILE` with a log of culvert's; may be repeated")
	c.Flags().BoolVar(&g.anonymise, "anonymise", false, "put pseudonyms in place of addresses and names")
	c.Flags().StringVarP(&g.file, "write", "w", "",
		"`FILE` to write; - is standard output (default culvert-gather-TIME.tar.gz)")
	c.MarkFlagFilename("write")
	c.MarkFlagFilename("log")
	c.MarkFlagFilename("kubeconfig")
	c.MarkFlagsMutuallyExclusive("context", "socket")
	c.RunE = func(*cobra.Command, []string) error { return g.run() }
	return c.Command
}

func (g *gathering) run() error {
	if g.kubeconfig != "" && len(g.contexts) == 0 {
		return errors.New("--kubeconfig: only with --context; add that")
	}
	a := &gather.Archive{Begun: time.Now().UTC()}
	for _, file := range g.logs {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		a.Add("culvert.log", text, "logs", filepath.Base(file))
	}
	collect := g.here
	if len(g.contexts) > 0 {
		collect = func(ctx context.Context, a *gather.Archive) error {
			return gatherClusters(ctx, a, g.kubeconfig, g.contexts)
		}
	}
	if err := collect(g.Context(), a); err != nil {
		return err
	}
	if err := g.Context().Err(); err != nil {
		return cli.Failed(fmt.Errorf("interrupted: %w", err))
	}
	if err := g.write(a); err != nil {
		return err
	}
	if len(a.Missing) == 0 {
		return nil
	}
	things := "1 thing"
	if n := len(a.Missing); n > 1 {
		things = fmt.Sprintf("%d things", n)
	}
	lines := []string{"gather: the archive is written, and lacks " + things + ":"}
	for i := range a.Missing {
		lines = append(lines, "missing: "+strings.ReplaceAll(a.Missing[i].String(), "\n", "; "))
	}
	return cli.Failed(errors.New(strings.Join(lines, "\n")))
}

// here adds what the gateways and nodes of this machine say.
func (g *gathering) here(ctx context.Context, a *gather.Archive) error {
	name := func(c *control.Client) string { return strings.TrimSuffix(filepath.Base(c.Path), ".sock") }
	nodes := control.RunningNodes(ctx, g.socket)
	if strings.Contains(g.socket, "/") {
		node := control.NewClient(g.socket)
		if _, err := node.Node(ctx); err == nil {
			a.AskNode(ctx, gather.Socket{Client: node}, "nodes", name(node))
			return nil
		}
	}
	gateways, err := control.Running(ctx, g.socket)
	if err != nil && len(nodes) == 0 {
		if len(g.logs) > 0 && g.socket == "" {
			a.Miss("gateways", err)
			return nil
		}
		return fmt.Errorf("%w; clusters are named by --context", err)
	}
	for _, c := range gateways {
		a.AskGateway(ctx, gather.Socket{Client: c}, "gateways", name(c))
	}
	for _, c := range nodes {
		a.AskNode(ctx, gather.Socket{Client: c}, "nodes", name(c))
	}
	return nil
}

// write writes the archive.
func (g *gathering) write(a *gather.Archive) error {
	var names *gather.Pseudonyms
	if g.anonymise {
		names = gather.NewPseudonyms()
	}
	var out bytes.Buffer
	if err := a.Write(&out, names); err != nil {
		return err
	}
	if g.file == "-" {
		_, err := g.OutOrStdout().Write(out.Bytes())
		return err
	}
	file := cmp.Or(g.file, a.Begun.Format("culvert-gather-20060102-150405.tar.gz"))
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		return fmt.Errorf("--write: %w", err)
	}
	_, err := fmt.Fprintf(g.OutOrStdout(), "%s: %d files, %s\n", file, len(a.Entries), bytesText(uint64(out.Len())))
	return err
}

// A toldStatus is a status in an archive.
type toldStatus struct {
	place string
	value any // *control.Status or *control.NodeStatus
}

// gathered prints the statuses in an archive as those of running gateways, and what it lacks.
func (c *clientCommand) gathered(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer f.Close()
	var all []toldStatus
	contents, err := gather.Read(f, func(name string, data []byte) error {
		var v any
		switch {
		case strings.HasSuffix(name, gather.StatusFile):
			v = new(control.Status)
		case strings.HasSuffix(name, gather.NodeFile):
			v = new(control.NodeStatus)
		default:
			return nil
		}
		all = append(all, toldStatus{filepath.Dir(name), v})
		return json.Unmarshal(data, v)
	})
	if err != nil {
		return fmt.Errorf("--from: %s: %w", file, err)
	}
	if c.output != "text" {
		for _, s := range all {
			if len(all) == 1 {
				err = c.print(s.value)
			} else {
				err = errors.Join(err, c.line(s.value))
			}
		}
		return err
	}
	page := &cli.Page{Columns: cli.Width(c.OutOrStdout())}
	for i, s := range all {
		if len(all) > 1 {
			fmt.Fprintf(page, "%s# %s\n", "\n"[:min(i, 1)], s.place)
		}
		switch v := s.value.(type) {
		case *control.Status:
			err = errors.Join(err, printGatewayStatus(page, v))
		case *control.NodeStatus:
			err = errors.Join(err, printNodeStatus(page, v))
		}
	}
	for i := range contents.Missing {
		fmt.Fprintf(page, "%s\n", cli.Wrap("missing: "+contents.Missing[i].String(), page.Columns))
	}
	if len(all) == 0 {
		fmt.Fprintln(page, "the archive has no status")
	}
	// Others have written this, and a terminal obeys control characters.
	_, write := fmt.Fprint(c.OutOrStdout(), cli.Printable(page.String()))
	return errors.Join(err, write)
}
