//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"

	"culvert/cmd/internal/cli"
	"culvert/kube/check"
	"culvert/kube/liqo"
	"culvert/kube/objects"
)

const (
	logLines = 20_000   // of a pod's log, its last ones
	logBytes = 16 << 20 // of them
	readers  = 8        // logs that are read at once
)

// The labels of the pods that know the links of their node.
const (
	agentLabels = "app.kubernetes.io/name=fabric,app.kubernetes.io/component=networking"
	ourLabels   = "app=culvert-links"
)

// checkNodes prints for each node who made its links.
func checkNodes(ctx context.Context, o *operator, w io.Writer) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	r := &liqoReader{ctx: ctx, client: client}
	c := &check.Nodes{Nodes: r.list(objects.LiqoResource(liqo.KindNode), "", ""),
		Fabrics: r.list(objects.LiqoResource(liqo.KindFabric), "", ""),
		Tunnels: r.list(objects.LiqoResource(liqo.KindTunnel), "", "")}
	pods := func(labels string) (all []check.Pod) {
		for _, p := range r.list(objects.Pods, "", labels) {
			all = append(all, check.PodOf(p))
		}
		return all
	}
	c.Agents, c.Ours = pods(agentLabels), pods(ourLabels)
	if err := errors.Join(r.errs...); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	if err := readLogs(ctx, config, c.Agents, c.Ours); err != nil {
		return err
	}
	return printLinksOf(w, c.Links())
}

// readLogs reads the ends of the logs of pods.
func readLogs(ctx context.Context, config *rest.Config, lists ...[]check.Pod) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	read := func(p *check.Pod) (string, error) {
		at := base.JoinPath("api/v1/namespaces", p.Namespace, "pods", p.Name, "log")
		at.RawQuery = url.Values{"tailLines": {fmt.Sprint(logLines)}, "limitBytes": {fmt.Sprint(logBytes)}}.Encode()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return "", err
		}
		answer, err := client.Do(request)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(io.LimitReader(answer.Body, logBytes))
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		return string(text), err
	}
	var tasks sync.WaitGroup
	places := make(chan struct{}, readers)
	for _, list := range lists {
		for i := range list {
			p := &list[i]
			tasks.Go(func() {
				places <- struct{}{}
				p.Log, p.LogError = read(p)
				<-places
			})
		}
	}
	tasks.Wait()
	return nil
}

// printLinksOf prints who made the links of nodes, and what to do if there is none.
func printLinksOf(w io.Writer, links []check.NodeLink) error {
	t := cli.NewTable(w)
	fmt.Fprintln(t, "NODE\tINTERFACE\tINTERNALFABRIC\tLINK")
	wrong := 0
	for i := range links {
		l := &links[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", l.Node, l.Interface, l.Fabric, l.Whose)
		if l.Wrong() {
			wrong++
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range links {
		word := "note"
		if l.Wrong() {
			word = "wrong"
		}
		if l.Remedy != "" {
			fmt.Fprintf(w, "%s\n", cli.Wrap(fmt.Sprintf("%s: node %s: %s: %s", word, l.Node, l.Interface, l.Remedy),
				cli.Width(w)))
		}
	}
	switch {
	case len(links) == 0:
		_, err := fmt.Fprintln(w, "Liqo has no InternalFabric yet: no gateway runs, and nodes need no link.")
		return err
	case wrong > 0:
		return cli.Failed(fmt.Errorf("%d of %d links are not there; correct what is wrong above", wrong, len(links)))
	}
	return nil
}
