//go:build !nokube

package main

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"

	"culvert/gateway/services"
	"culvert/kube/service"
)

// serve returns what serves the Services of Kubernetes until its context ends, and what changes what Kubernetes does not say, base.
func (k *nodeKube) serve(base *services.Config, log *logrus.Logger) (serve func(context.Context) error, change func(context.Context, *services.Config) error, err error) {
	client, err := newClient(k.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	klog.SetLogger(klog.Logger{}) // what matters of it, the source says
	source := service.NewSource(client, service.Mode(k.mode), k.name, k.namespace, base, log.WithField("node", k.name))
	serve = func(ctx context.Context) (failed error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var server server
		ended := make(chan error, 1)
		source.Run(ctx, func(c *services.Config) (err error) {
			if server != nil {
				return server.Apply(ctx, c)
			}
			s, err := newServer(c, true, log)
			if err != nil {
				if !errors.As(err, new(*services.TakenError)) { // this machine cannot serve
					failed = err
					stop()
				}
				return err
			}
			server = s
			go func() {
				ended <- s.Run(ctx)
				stop()
			}()
			return nil
		})
		if server != nil {
			failed = <-ended
		}
		return failed
	}
	return serve, source.Rebase, nil
}
