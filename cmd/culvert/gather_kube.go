//go:build !nokube

package main

import (
	"context"
	"fmt"

	"culvert/gateway/gather"
	kubegather "culvert/kube/gather"
)

// gatherClusters adds what the clusters of contexts say.
func gatherClusters(ctx context.Context, a *gather.Archive, kubeconfig string, contexts []string) error {
	if err := checkTwice(contexts); err != nil {
		return err
	}
	clusters := make([]*kubegather.Cluster, len(contexts))
	for i, name := range contexts {
		config, err := (&operator{kubeconfig, name}).config()
		if err == nil {
			clusters[i], err = kubegather.New(name, config)
		}
		if err != nil {
			return fmt.Errorf("--context %s: %w", name, err)
		}
	}
	for _, c := range clusters {
		c.Collect(ctx, a)
	}
	return nil
}
