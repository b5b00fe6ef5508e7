package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/gateway/webpage"
)

func newPageCommand() *cobra.Command {
	var port uint16
	c := newClientCommand(&cobra.Command{
		Use:   "page",
		Short: "Show running gateways live in a browser: packets, drops, problems",
		Long: "Show this machine's gateways in a browser, or only the one that --socket names, until interrupted: " +
			"the path of packets with live rates, nodes, the peer, the connection table, and what is dropped and " +
			"why. The page can be opened only from this machine, because its address has a secret in it, and it " +
			"cannot change anything. To read it from another machine, forward the port: ssh -L 8090:127.0.0.1:8090 " +
			"HOST",
		Example: "  culvert page\n  culvert page --socket rome --port 8090",
		Args:    cobra.NoArgs,
	})
	c.Flags().Uint16Var(&port, "port", 0, "TCP `PORT` on 127.0.0.1; 0 picks a free one")
	c.RunE = func(*cobra.Command, []string) error {
		gateways, err := control.Running(c.Context(), c.socket)
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return fmt.Errorf("--port: %w; choose another", err)
		}
		p := webpage.New(gateways)
		fmt.Fprintf(c.OutOrStdout(), "http://%s%s\n", l.Addr(), p.Path())
		return servePage(c.Context(), l, p)
	}
	return c.Command
}

// servePage answers connections to l, until ctx is done.
func servePage(ctx context.Context, l net.Listener, p *webpage.Page) error {
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: 2 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return cli.Failed(err)
	}
	return nil
}
