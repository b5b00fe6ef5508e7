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

// controlSocket returns the control socket of a gateway with configuration c, "" = none.
func controlSocket(c *config.Config) string {
	if c.Control == config.ControlAuto {
		return control.DefaultPath(c.Cluster, c.Peer)
	}
	return c.Control
}

// openGateway opens the gateway; if takeover is not "", it replaces the one at that socket.
func openGateway(ctx context.Context, takeover string, c *config.Config, log *logrus.Logger) (*gateway.Gateway, error) {
	budget := setLimits(c.CPUs)
	if takeover == "" {
		return gateway.New(c, budget, log)
	}
	if takeover == fromConfig {
		takeover = controlSocket(c)
	}
	if takeover == "" {
		return nil,
			errors.New(`--takeover: control is "" in this configuration; name the socket of the gateway that runs, ` +
				"by --takeover=SOCKET")
	}
	return gateway.TakeOver(ctx, takeover, c, budget, log)
}

// successor starts this program again, from the path it was started from, to take over.
type successor struct {
	may  func() error // returns an error if none could take over
	args []string     // its arguments
	log  *logrus.Logger
}

// watch starts a successor at each signal until ctx ends.
func (s *successor) watch(ctx context.Context, usr2 <-chan os.Signal) {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-usr2:
				if err := s.start(); err != nil {
					s.log.WithError(err).Error("no hand-over: this process goes on")
				}
			}
		}
	}()
}

// start returns when the other process has ended; a hand-over ends this process before.
func (s *successor) start() error {
	if err := s.may(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		return errors.New("this is process 1: when it ends, so does everything beside it; start a process with " +
			"--takeover in a container that shares network and control socket")
	}
	path, err := ownPath()
	if err != nil {
		return err
	}
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool {
		return a == "--takeover" || strings.HasPrefix(a, "--takeover=")
	})
	cmd := exec.Command(path, append(args, s.args...)...)
	cmd.Args[0], cmd.Stdout, cmd.Stderr = os.Args[0], os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	s.log.WithFields(logrus.Fields{"process": cmd.Process.Pid, "program": path}).Info(
		"starting the process that takes over")
	if err := cmd.Wait(); err != nil { // its messages are in the same log
		return fmt.Errorf("the process that was to take over: %w", err)
	}
	return nil
}

// startedAs is the path by which the program was started, evaluated before anything could change
// the working folder.
var startedAs, startedIn = os.Args[0], workingFolder()

func workingFolder() string {
	dir, _ := os.Getwd()
	return dir
}

// ownPath is the path from which the program was started. An update puts another program there,
// whereas /proc/self/exe remains this one.
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
