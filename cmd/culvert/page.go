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
		Short: "Show running gateways in a browser: the way of packets, live, and what is wrong",
		Long: "Show the gateways that run here in a browser, or the one that --socket names, until interrupted: the\n" +
			"way of packets with live rates, nodes, peer, table, what is refused and why. Only this machine can\n" +
			"open the page, by an address that has a secret in it, and it changes nothing. To read it from\n" +
			"another machine, take the port there: ssh -L 8090:127.0.0.1:8090 HOST",
		Example: "  culvert page\n  culvert page --socket rome --port 8090",
		Args:    cobra.NoArgs,
	})
	c.Flags().Uint16Var(&port, "port", 0, "TCP `PORT` of 127.0.0.1; 0 is one that is free")
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
