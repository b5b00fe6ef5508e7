package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
)

// fromConfig is --takeover without a value.
const fromConfig = "the one of --config"

// controlSocket is where a gateway with the configuration c would be asked, "" = nowhere.
func controlSocket(c *config.Config) string {
	if c.Control == config.ControlAuto {
		return control.DefaultPath(c.Cluster, c.Peer)
	}
	return c.Control
}

// openGateway makes the gateway, in the place of the one at a socket if takeover is not "".
func openGateway(ctx context.Context, takeover string, c *config.Config, log *logrus.Logger) (*gateway.Gateway, error) {
	budget := setLimits()
	if takeover == "" {
		return gateway.New(c, budget, log)
	}
	if takeover == fromConfig {
		takeover = controlSocket(c)
	}
	if takeover == "" {
		return nil, errors.New(`--takeover: control is "" in this configuration; name the socket of the gateway that runs, by --takeover=SOCKET`)
	}
	return gateway.TakeOver(ctx, takeover, c, budget, log)
}

// successor starts this program anew, as it is now at the path that it was started from, and
// has it take over.
type successor struct {
	socket string // of this gateway; "" = none
	log    *logrus.Logger
}

// watch starts one at each signal until ctx ends.
func (s *successor) watch(ctx context.Context, usr2 <-chan os.Signal) {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-usr2:
				if err := s.start(); err != nil {
					s.log.WithError(err).Error("no hand-over: this gateway goes on")
				}
			}
		}
	}()
}

// start returns when the other process has ended, or in the hand-over this one does.
func (s *successor) start() error {
	if s.socket == "" {
		return errors.New(`control is "": a process that takes over has to ask by that socket; set it`)
	}
	if os.Getpid() == 1 {
		return errors.New("this is process 1: when it ends, so does everything beside it; start a process with --takeover in a container that shares network and control socket")
	}
	path, err := ownPath()
	if err != nil {
		return err
	}
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--takeover" || strings.HasPrefix(a, "--takeover=") })
	cmd := exec.Command(path, append(args, "--takeover="+s.socket)...)
	cmd.Args[0], cmd.Stdout, cmd.Stderr = os.Args[0], os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	s.log.WithFields(logrus.Fields{"process": cmd.Process.Pid, "program": path}).Info("starting the gateway that takes over")
	if err := cmd.Wait(); err != nil { // what it has said is in the same log
		return fmt.Errorf("the gateway that was to take over: %w", err)
	}
	return nil
}

// startedAs is how the program was called, before anything could change the folder.
var startedAs, startedIn = os.Args[0], workingFolder()

func workingFolder() string {
	dir, _ := os.Getwd()
	return dir
}

// ownPath is where the program was started from: an update puts another one there, whereas
// /proc/self/exe goes on to be this one.
func ownPath() (string, error) {
	path := startedAs
	if !strings.Contains(path, "/") {
		return exec.LookPath(path)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(startedIn, path)
	}
	return path, nil
}

// notify tells the service manager about this process (sd_notify(3)), if there is one.
func notify(lines ...string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(strings.Join(lines, "\n")))
	return err
}
