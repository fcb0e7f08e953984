// SPDX-License-Identifier: Apache-2.0

// Uses an API server as operators in Go do: typed clients (which send protobuf), informers, leader election and
// controller-runtime's manager. It prints a line for each thing that works and ends with the first that does not.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const limit = 30 * time.Second

func main() {
	klog.SetOutput(os.Stderr)
	ctrl.SetLogger(klog.Background())
	ctx, cancel := context.WithTimeout(context.Background(), 4*limit)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err == nil {
		err = run(ctx, config, os.Getenv("NAMESPACE"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config *rest.Config, namespace string) error {
	steps := []func(context.Context, *rest.Config, string) error{typed, definition, informer, election, manager}
	for _, step := range steps {
		if err := step(ctx, config, namespace); err != nil {
			return err
		}
	}
	return nil
}

func done(format string, arguments ...any) {
	fmt.Printf(format+"\n", arguments...)
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "go"}}, Data: data}
}

// Typed clients: every verb, and the errors that they know.
func typed(ctx context.Context, config *rest.Config, namespace string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(namespace)
	created, err := maps.Create(ctx, configMap("typed", map[string]string{"a": "1"}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	done("created %s with %v", created.Name, created.Data)
	_, err = maps.Create(ctx, configMap("typed", nil), metav1.CreateOptions{})
	done("exists already: %v", apierrors.IsAlreadyExists(err))
	stale := created.DeepCopy()
	created.Data["a"] = "2"
	updated, err := maps.Update(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	done("updated to %v", updated.Data)
	_, err = maps.Update(ctx, stale, metav1.UpdateOptions{})
	done("conflict: %v", apierrors.IsConflict(err))
	patched, err := maps.Patch(ctx, "typed", types.StrategicMergePatchType, []byte(`{"data":{"b":"3"}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	done("patched to %v", patched.Data)
	list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "of=go"})
	if err != nil {
		return err
	}
	done("listed %d", len(list.Items))
	replicas := int32(2)
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
		}},
	}
	made, err := clients.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	done("deployment defaults: %s, %s", made.Spec.Strategy.Type, made.Spec.Template.Spec.RestartPolicy)
	scale, err := clients.AppsV1().Deployments(namespace).GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	scale.Spec.Replicas = 5
	if scale, err = clients.AppsV1().Deployments(namespace).UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil {
		return err
	}
	done("scaled to %d", scale.Spec.Replicas)
	policy := metav1.DeletePropagationBackground
	if err := maps.Delete(ctx, "typed", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "typed", metav1.GetOptions{})
	done("not found: %v", apierrors.IsNotFound(err))
	_, resources, err := clients.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	done("discovered: %v", len(resources) > 20)
	return nil
}

// A definition whose schema has arrays, maps and rules, sent as protobuf.
func definition(ctx context.Context, config *rest.Config, namespace string) error {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	clients, err := apiextensions.NewForConfig(config)
	if err != nil {
		return err
	}
	group := namespace + ".example.com"
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	zero := int64(0)
	kept := true
	schema := &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"list": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string", MinLength: &zero}},
			XValidations: apiextensionsv1.ValidationRules{{Rule: "self.name != 'x'"}},
		}}},
		"map":    {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &text}},
		"number": {XIntOrString: true},
		"any":    {Type: "object", XPreserveUnknownFields: &kept},
	}}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema},
			}},
		},
	}
	crds := clients.ApiextensionsV1().CustomResourceDefinitions()
	made, err := crds.Create(ctx, crd, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	same := equality.Semantic.DeepEqual(made.Spec.Versions[0].Schema, crd.Spec.Versions[0].Schema)
	done("definition is stored as sent: %v", same)
	return crds.Delete(ctx, crd.Name, metav1.DeleteOptions{})
}

// A shared informer sees an object come, change and go.
func informer(ctx context.Context, config *rest.Config, namespace string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(namespace))
	seen := make(chan string, 16)
	shared := factory.Core().V1().Secrets().Informer()
	name := func(object any) string {
		key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		return key[len(namespace)+1:]
	}
	if _, err := shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { seen <- "added " + name(object) },
		UpdateFunc: func(_, object any) { seen <- "changed " + name(object) },
		DeleteFunc: func(object any) { seen <- "deleted " + name(object) },
	}); err != nil {
		return err
	}
	secrets := clients.CoreV1().Secrets(namespace)
	if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), shared.HasSynced) {
		return errors.New("the informer is not in step")
	}
	secret, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "second"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	secret.StringData = map[string]string{"a": "b"}
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := secrets.Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
		return err
	}
	for range 4 {
		select {
		case event := <-seen:
			done("informer: %s", event)
		case <-time.After(limit):
			return errors.New("the informer sees nothing more")
		}
	}
	return nil
}

// A lease is taken, held and given back.
func election(ctx context.Context, config *rest.Config, namespace string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "one"},
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { done("leading"); cancel() },
			OnStoppedLeading: func() { done("not leading any more") },
		},
	})
	lease, err := clients.CoordinationV1().Leases(namespace).Get(context.Background(), "leader", metav1.GetOptions{})
	if err != nil {
		return err
	}
	done("released: %v", lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "")
	return nil
}

// The reconciler of a manager makes a child and sees it change.
func manager(ctx context.Context, config *rest.Config, namespace string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Metrics:                 server.Options{BindAddress: "0"},
		Cache:                   ctrlcache.Options{DefaultNamespaces: map[string]ctrlcache.Config{namespace: {}}},
		LeaderElection:          true,
		LeaderElectionID:        "manager",
		LeaderElectionNamespace: namespace,
	})
	if err != nil {
		return err
	}
	result := make(chan string, 16)
	reconciler := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		parent := &corev1.ConfigMap{}
		if err := mgr.GetClient().Get(ctx, request.NamespacedName, parent); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if parent.Labels["of"] != "manager" {
			return reconcile.Result{}, nil
		}
		child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: parent.Name + "-child", Namespace: namespace}}
		done, err := controllerutil.CreateOrUpdate(ctx, mgr.GetClient(), child, func() error {
			child.StringData = nil
			child.Data = map[string][]byte{"a": []byte(parent.Data["a"])}
			return controllerutil.SetControllerReference(parent, child, mgr.GetScheme())
		})
		if err == nil && done != controllerutil.OperationResultNone {
			result <- fmt.Sprintf("child %s with %s", done, child.Data["a"])
		}
		return reconcile.Result{}, err
	})
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(reconciler); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	direct, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	parent := configMap("parent", map[string]string{"a": "1"})
	parent.Namespace, parent.Labels = namespace, map[string]string{"of": "manager"}
	if err := direct.Create(ctx, parent); err != nil {
		return err
	}
	if err := expect(result, ended); err != nil {
		return err
	}
	parent.Data["a"] = "2"
	if err := direct.Update(ctx, parent); err != nil {
		return err
	}
	if err := expect(result, ended); err != nil {
		return err
	}
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	done("manager ended")
	return nil
}

func expect(result <-chan string, ended <-chan error) error {
	select {
	case text := <-result:
		done("manager: %s", text)
		return nil
	case err := <-ended:
		return fmt.Errorf("the manager ended: %w", err)
	case <-time.After(limit):
		return errors.New("the manager does nothing")
	}
}
