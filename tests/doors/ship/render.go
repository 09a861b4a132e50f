// Renders the templates of a Helm chart as Helm does: Go's templates, sprig's functions, and the few that
// Helm adds. For where there is no helm.
// Usage: render CHART RELEASE NAMESPACE [VALUES.yaml]
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: render CHART RELEASE NAMESPACE [VALUES.yaml]")
	}
	folder := os.Args[1]
	chart := read(filepath.Join(folder, "Chart.yaml"))
	values := read(filepath.Join(folder, "values.yaml"))
	if len(os.Args) > 4 {
		values = merged(values, read(os.Args[4]))
	}
	data := map[string]interface{}{
		"Values":  values,
		"Release": map[string]interface{}{"Name": os.Args[2], "Namespace": os.Args[3], "Service": "Helm"},
		"Chart": map[string]interface{}{
			"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"],
		},
	}

	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		must(err)
		return strings.TrimSuffix(string(text), "\n")
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["required"] = func(what string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", what)
		}
		return value, nil
	}
	// Nothing is there yet, as on a first installation.
	functions["lookup"] = func(_, _, _, _ string) map[string]interface{} { return map[string]interface{}{} }
	all.Funcs(functions)

	files, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	must(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(err)
		template.Must(all.New(filepath.Base(file)).Parse(string(text)))
	}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text strings.Builder
		must(all.ExecuteTemplate(&text, name, data))
		if strings.Contains(text.String(), "<no value>") {
			log.Fatalf("%s: a value that values.yaml does not have:\n%s", name, text.String())
		}
		if strings.TrimSpace(text.String()) != "" && strings.HasSuffix(name, ".yaml") {
			fmt.Printf("---\n# Source: %s\n%s\n", name, text.String())
		}
	}
}

func read(file string) map[string]interface{} {
	text, err := os.ReadFile(file)
	must(err)
	parsed := map[string]interface{}{}
	must(yaml.Unmarshal(text, &parsed))
	return parsed
}

func merged(into, from map[string]interface{}) map[string]interface{} {
	for name, value := range from {
		inner, isMap := value.(map[string]interface{})
		known, wasMap := into[name].(map[string]interface{})
		if isMap && wasMap {
			into[name] = merged(known, inner)
		} else {
			into[name] = value
		}
	}
	return into
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
