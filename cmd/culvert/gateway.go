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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/procs"
)

func newGatewayCommand() *cobra.Command {
	var file, output, takeover string
	var check bool
	var liqo *liqoFlags
	var kube *kubeFlags
	cmd := &cobra.Command{
		Use:   "gateway --config FILE | --liqo | --kube",
		Short: "Run the gateway of one cluster towards one remote cluster",
		Long: "Run the gateway of one cluster towards one remote cluster.\n\n" +
			"SIGHUP makes it read its file again, SIGTERM stops it. SIGUSR2 makes it start the program at its own " +
			"path with --takeover: the new gateway takes over sockets and connections, and this one exits. If that " +
			"fails, this one continues. It tells a service manager its state by NOTIFY_SOCKET.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := kube.check(); err != nil {
				return err
			}
			if kube.on {
				return runKube(cmd.Context(), kube)
			}
			if strange := liqo.strange(); strange != nil && liqo.on {
				return fmt.Errorf("--%s: not with --liqo, which reads no file", strings.Join(strange, ", --"))
			} else if strange != nil {
				return fmt.Errorf("--%s: only with --liqo; add it", strings.Join(strange, ", --"))
			}
			if liqo.on {
				return runLiqo(cmd.Context(), liqo)
			}
			if file == "" {
				return errors.New(`required flag(s) "config" not set`)
			}
			if cmd.Flags().Changed("output") && !check {
				return errors.New("--output: only with --check, which prints and starts nothing; add --check")
			}
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			if check {
				r, err := config.Remap(cmd.Context(), c, time.Now(), true, config.Check)
				if err != nil {
					return err
				}
				r.Warnings = append(r.Warnings, portsInUse(cmd.Context(), r.Config)...)
				return printChecked(cmd.OutOrStdout(), file, output, r)
			}
			return runGateway(cmd.Context(), file, takeover, c)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	cmd.Flags().BoolVar(&check, "check", false, "validate the configuration and exit")
	cmd.Flags().StringVar(&takeover, "takeover", "",
		"take over sockets and connections from the gateway that serves this control `SOCKET`")
	cmd.Flags().Lookup("takeover").NoOptDefVal = fromConfig
	cmd.Flags().StringVarP(&output, "output", "o", "text", "with --check: text or json")
	cli.FlagValues(cmd, "output", "text", "json")
	liqo = addLiqoFlags(cmd.Flags())
	kube = addKubeFlags(cmd.Flags(), liqo)
	return cmd
}

// loadConfig reads a gateway's file and checks that it requests no more CPUs than this process may
// use.
func loadConfig(file string) (*config.Config, error) {
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return c, checkCPUs(file, c.CPUs, &c.Warnings)
}

func runGateway(ctx context.Context, file, takeover string, c *config.Config) error {
	// Signals that arrive before the gateway runs wait for it; otherwise SIGHUP would end the
	// process, and SIGUSR2 do nothing. This is never undone: a SIGHUP after the gateway has stopped
	// must not turn success into a failure.
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(usr2, syscall.SIGUSR2)
	log, err := newLogger(c.Log.Level, c.Log.Format)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, lockPatience, errLockPatience)
	defer cancel()
	claim, err := c.Claim(waiting)
	if err != nil {
		return err
	}
	defer claim.Close()
	remapped, err := config.Remap(waiting, c, time.Now(), false, config.Check)
	if err != nil {
		return err
	}
	g, err := openGateway(ctx, takeover, remapped.Config, log)
	if err != nil {
		return err
	}
	logRemaps(log, remapped)
	r := &reloader{g: g, file: file, log: log}
	g.SetReload(r.reload)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				if _, err := r.reload(ctx, false); err != nil {
					log.WithError(err).Error("configuration refused, the running one stays")
				}
			}
		}
	}()
	socket := g.ControlSocket()
	mayTakeOver := func() error {
		if socket == "" {
			return errors.New(`control is "": a process that takes over has to ask by that socket; set it`)
		}
		return nil
	}
	(&successor{may: mayTakeOver, args: []string{"--takeover=" + socket}, log: log}).watch(ctx, usr2)
	if err := notify("READY=1"); err != nil {
		log.WithError(err).Warn("the service manager cannot be told that this gateway runs")
	}
	if err := g.Run(ctx); err != nil {
		return cli.Failed(err)
	}
	if pid := g.Successor(); pid != 0 {
		if err := notify(fmt.Sprintf("MAINPID=%d", pid)); err != nil {
			log.WithError(err).Warn("the service manager cannot be told that another process runs the gateway")
		}
	}
	return nil
}

// How long a gateway or command waits for others that write the stored remaps.
const lockPatience = 30 * time.Second

var errLockPatience = fmt.Errorf("waited %v", lockPatience)

// A reloader reads a gateway's file again.
type reloader struct {
	g    *gateway.Gateway
	file string
	log  *logrus.Logger
	mu   sync.Mutex // one at a time
}

// reload applies the file, or in a dry run reports what that would change. A file with any fault
// changes nothing.
func (r *reloader) reload(ctx context.Context, dryRun bool) (*control.Reloaded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience, errLockPatience)
	defer cancel()
	c, err := loadConfig(r.file)
	if err != nil {
		return nil, err
	}
	remapped, err := config.Remap(ctx, c, time.Now(), dryRun, r.g.Check)
	if err != nil {
		return nil, err
	}
	done := &control.Reloaded{DryRun: dryRun, Changes: r.g.Changes(remapped.Config), Warnings: remapped.Warnings}
	for _, a := range remapped.Choices {
		if a.New {
			done.Chosen = append(done.Chosen, fmt.Sprintf("%s: %s", a.Path, a.RemappedText()))
		}
	}
	if dryRun {
		return done, nil
	}
	if err := r.g.Apply(remapped.Config); err != nil {
		return nil, err
	}
	procs.Use(remapped.Config.CPUs)
	logRemaps(r.log, remapped)
	return done, nil
}

func logRemaps(log *logrus.Logger, r *config.Remapped) {
	for _, w := range r.Warnings {
		log.Warn(w)
	}
	for _, c := range r.Choices {
		if c.New {
			log.WithFields(logrus.Fields{"field": c.Path, "real": c.Real, "remapped": c.RemappedText()}).Info(
				"remap chosen")
		}
	}
}

// checked is the compiled view of a configuration, printed by --check -o json.
type checked struct {
	Cluster       string        `json:"cluster"`
	Peer          string        `json:"peer"`
	MTU           int           `json:"mtu"`
	UnknownSource string        `json:"unknownSource"` // "off" or the address
	Remaps        []remap       `json:"remaps"`
	Chosen        []chosen      `json:"chosen,omitempty"` // for each auto
	Warnings      []string      `json:"warnings,omitempty"`
	Nodes         []checkedNode `json:"nodes"`
}

type remap struct {
	CIDR  netip.Prefix `json:"cidr"`
	Remap netip.Prefix `json:"remap"`
}

type chosen struct {
	Path     string `json:"path"`
	Real     string `json:"real"`
	Remapped string `json:"remapped"`
	New      bool   `json:"new"` // not stored before
}

type checkedNode struct {
	Name   string         `json:"name"`
	VNI    uint32         `json:"vni"`
	Routes []netip.Prefix `json:"routes"`
}

func printChecked(w io.Writer, file, output string, r *config.Remapped) error {
	c := r.Config
	switch output {
	case "text":
		text := fmt.Sprintf("%s: good: %s to %s, %d nodes\n", file, c.Cluster, c.Peer, len(c.Geneve.Nodes))
		for _, a := range r.Choices {
			text += fmt.Sprintf("%s: %s, %s\n", a.Path, a.RemappedText(), remembered(a.New))
		}
		for _, warning := range r.Warnings {
			text += fmt.Sprintf("warning: %s\n", warning)
		}
		_, err := io.WriteString(w, text)
		return err
	case "json":
	default:
		return errors.New("--output: want text or json")
	}
	view := checked{Cluster: c.Cluster, Peer: c.Peer, MTU: int(c.MTU), UnknownSource: "off", Warnings: r.Warnings}
	for _, a := range r.Choices {
		view.Chosen = append(view.Chosen, chosen{a.Path, a.Real, a.RemappedText(), a.New})
	}
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
	return printJSON(w, view)
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func remembered(isNew bool) string {
	if isNew {
		return "new"
	}
	return "remembered"
}
