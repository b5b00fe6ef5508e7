//go:build !nokube

package main

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"

	"culvert/gateway/node/services"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/state"
	"culvert/kube/service"
)

// serve returns a function that serves the Services of Kubernetes until its context ends, and one
// that changes base, the settings that do not come from Kubernetes.
func (k *nodeKube) serve(base *services.Config, show shower, log *logrus.Logger) (serve func(context.Context) error,
	change func(context.Context, *services.Config) error, err error) {
	client, err := newClient(k.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	klog.SetLogger(klog.Logger{}) // the source logs what matters
	base.Which = k.mode
	source := service.NewSource(client, service.Mode(k.mode), k.name, k.namespace, base, log.WithField("node", k.name))
	k.remotes.follow(source.Route)
	serve = func(ctx context.Context) (failed error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var server server
		forget := false // the saved Services
		ended := make(chan error, 1)
		start := func(c *services.Config) (err error) {
			if server, err = newServer(c, true, log); server == nil {
				return err
			}
			go func() {
				err := runServer(ctx, server, k.name, show, log)
				if errors.As(err, new(*services.HandedOver)) {
					source.HandedOver()
				}
				ended <- err
				stop()
			}()
			return err
		}
		saved := services.Saved(base, log)
		if saved != nil {
			if err := start(saved); err != nil {
				log.WithError(err).Warn(
					"the Services of the previous run are not served: the API server says what they are")
			} else {
				log.WithField("services", len(saved.Services)).Info(
					"the Services of the previous run are served until the API server answers")
			}
		}
		source.Run(ctx, func(c *services.Config) (err error) {
			if server == nil {
				err = start(c)
			} else if err = server.Apply(ctx, c); saved != nil && errors.Is(err, services.ErrRestart) {
				failed, forget = err, true
				stop()
			}
			saved = nil
			// this machine cannot serve
			if err != nil && server == nil && !errors.As(err, new(*steer.ConflictError)) &&
				!errors.Is(err, state.ErrInUse) {
				failed = err
				stop()
			}
			return err
		})
		if server != nil {
			failed = errors.Join(failed, <-ended)
		}
		if forget {
			failed = errors.Join(failed, services.Forget(base))
		}
		return failed
	}
	change = func(ctx context.Context, base *services.Config) error {
		base.Which = k.mode
		return source.Rebase(ctx, base)
	}
	return serve, change, nil
}
