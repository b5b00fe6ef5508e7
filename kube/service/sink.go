package service

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube"
)

// put adds an object. It parses the object before taking the lock.
func (s *Source) put(o *Object) {
	r := read(o, s.self)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeIf(s.state.put(r))
}

func (s *Source) remove(kind string, name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeIf(s.state.Delete(kind, name))
}

// take replaces all objects of a kind.
func (s *Source) take(kind string, all []*Object) {
	objects := make([]parsed, 0, len(all))
	for _, o := range all {
		objects = append(objects, read(o, s.self))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[Name]bool, len(all))
	changed := !s.complete[kind]
	for _, o := range objects {
		there[Name{o.Metadata.Namespace, o.Metadata.Name}] = true
		changed = s.state.put(o) || changed
	}
	for _, name := range s.state.names(kind) {
		if !there[name] {
			changed = s.state.Delete(kind, name) || changed
		}
	}
	s.complete[kind] = true
	s.wakeIf(changed)
}

// wakeIf wakes Run if something has changed.
//
// +checklocks:s.mu
func (s *Source) wakeIf(changed bool) {
	if changed {
		s.changed = true
		signal(s.wake)
	}
}

// A sink receives what a reflector reads, and keeps nothing of it.
type sink struct {
	*Source
	kind string
}

func (k sink) Add(o any) error {
	if x, err := k.object(o); err == nil {
		k.put(x)
	}
	return nil
}

func (k sink) Update(o any) error { return k.Add(o) }

func (k sink) Delete(o any) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		k.remove(k.kind, Name{u.GetNamespace(), u.GetName()})
	}
	return nil
}

func (k sink) Replace(all []any, _ string) error {
	objects := make([]*Object, 0, len(all))
	for _, o := range all {
		if x, err := k.object(o); err == nil {
			objects = append(objects, x)
		}
	}
	k.take(k.kind, objects)
	return nil
}

func (k sink) Resync() error { return nil }

func (k sink) object(o any) (*Object, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, errors.New("service: no object")
	}
	return ObjectOf(k.kind, u)
}

// ObjectOf takes the parts used here of an object of a kind.
func ObjectOf(kind string, u *unstructured.Unstructured) (*Object, error) {
	x := &Object{Kind: kind, Metadata: kube.Metadata{
		Name: u.GetName(), Namespace: u.GetNamespace(), UID: string(u.GetUID()), Labels: u.GetLabels(), Created: u.GetCreationTimestamp().Time,
	}}
	var failed error
	part := func(name string) []byte {
		p, err := kube.PartOf(u, name)
		failed = errors.Join(failed, err)
		return p
	}
	switch kind {
	case KindSlice:
		x.AddressType, x.Endpoints, x.Ports = part("addressType"), part("endpoints"), part("ports")
	case KindNode:
		x.Status = part("status")
	default:
		x.Spec, x.Status, x.Annotations = part("spec"), part("status"), u.GetAnnotations()
	}
	return x, failed
}
