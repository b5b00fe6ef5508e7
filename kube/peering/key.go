package peering

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/wgkey"
	"culvert/kube"
	"culvert/kube/objects"
)

// Keys are the secret keys of a gateway.
type Keys struct {
	Private   wgkey.Key
	Preshared wgkey.Key // zero: none
}

// ReadKeys returns the gateway's keys from its Secret. Without a private key there, it makes one.
func ReadKeys(ctx context.Context, client dynamic.Interface, namespace, name string) (k Keys, err error) {
	secrets := client.Resource(objects.Secrets).Namespace(namespace)
	of := fmt.Sprintf("Secret %s/%s", namespace, name)
	for {
		u, err := secrets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return Keys{}, fmt.Errorf("%s: %w; culvert kube template --peering prints it", of, err)
		}
		if k.Preshared, err = keyIn(u, presharedField); err != nil {
			return Keys{}, fmt.Errorf("%w; write what wg genpsk prints, or remove it", err)
		}
		if k.Private, err = keyIn(u, privateField); err != nil {
			return Keys{}, fmt.Errorf("%w; empty it, and the gateway makes a new one", err)
		}
		made := k.Private == (wgkey.Key{})
		if made {
			k.Private = wgkey.NewPrivate()
			text := base64.StdEncoding.EncodeToString([]byte(k.Private.Base64()))
			if err := unstructured.SetNestedField(u.Object, text, "data", privateField); err != nil {
				return Keys{}, fmt.Errorf("%s: %w", of, err)
			}
		}
		public := k.Private.Public().Base64()
		if !made && u.GetAnnotations()[KeyAnnotation] == public {
			return k, nil
		}
		annotate(u, public)
		switch _, err := secrets.Update(ctx, u, metav1.UpdateOptions{}); {
		case apierrors.IsConflict(err):
		case err == nil || !made: // nobody may change a Secret that has its key
			return k, nil
		default:
			return Keys{}, fmt.Errorf("%s: %w", of, err)
		}
	}
}

// The fields of the Secret.
const (
	privateField   = "privateKey"
	presharedField = "presharedKey"
)

// keyIn reads a key in a Secret; a missing or empty one is zero.
func keyIn(u *unstructured.Unstructured, field string) (wgkey.Key, error) {
	at := fieldAt(kube.KeyOf(u), field)
	text, _, err := unstructured.NestedString(u.Object, "data", field)
	if err != nil || text == "" {
		if err != nil {
			err = fmt.Errorf("%s: not a text", at)
		}
		return wgkey.Key{}, err
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return wgkey.Key{}, fmt.Errorf("%s: not base64", at)
	}
	k, err := wgkey.ParseStored(raw)
	if err != nil {
		return wgkey.Key{}, fmt.Errorf("%s: %w", at, err)
	}
	return k, nil
}

// fieldAt names a field of a Secret.
func fieldAt(key, field string) string { return fmt.Sprintf("Secret %s: data.%s", key, field) }

// secret follows the gateway's Secret, where an administrator may change the pre-shared key. The
// keys of one that is deleted stay in use.
//
// +checklocksignore: what it returns is called with mu held
func (s *GatewaySource) secret() kube.Set {
	return kube.Set{Name: kindSecret, Resource: objects.Secrets, Namespace: s.self.Namespace,
		Fields: "metadata.name=" + SecretName(s.self.Name),
		Read: func(u *unstructured.Unstructured) func(string) {
			k, err := keyIn(u, presharedField)
			return func(string) {
				if s.badSecret = err; err == nil {
					s.preshared = &k
				}
			}
		},
		Drop: func(string, string) {},
	}
}

// SecretName returns the name of the Secret of a Peering's gateway.
func SecretName(peering string) string { return "culvert-" + peering }

// KeyAnnotation is the annotation of the Secret with the public key, for those who must not see the
// private one.
const KeyAnnotation = Group + "/public-key"

func annotate(u *unstructured.Unstructured, public string) {
	all := maps.Clone(u.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	all[KeyAnnotation] = public
	u.SetAnnotations(all)
}
